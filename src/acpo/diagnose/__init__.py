"""The paper's analyses on any trace: numbers first, figures from the numbers."""
