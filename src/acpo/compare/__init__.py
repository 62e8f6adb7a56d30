"""`acpo compare`: many rows of the table under one budget, and what may be said about them."""
