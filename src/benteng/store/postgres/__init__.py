"""The PostgreSQL ledger: verbs are SECURITY DEFINER functions, and each facet is a role that may call its own alone."""
