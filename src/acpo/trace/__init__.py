"""`acpo trace`: sample from a model, verify, score every token, write a trace."""
