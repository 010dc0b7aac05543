"""The keeper: what time does to jobs. It holds a credential and imports no user code."""
