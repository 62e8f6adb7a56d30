"""`acpo train` and `acpo doctor`: from a recipe to a trained model and a report."""
