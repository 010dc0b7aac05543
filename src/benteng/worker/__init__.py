"""The worker: a supervisor that holds the credential, a zygote, and cells that run the handlers."""
