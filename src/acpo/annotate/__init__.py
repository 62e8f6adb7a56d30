"""First errors: two annotators propose, a person verifies, and the file says who did what."""
