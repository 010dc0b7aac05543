"""An app that cannot be imported, and says a secret on the way."""

raise SystemExit("password=hunter2hunter2")
