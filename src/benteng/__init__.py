"""benteng: a hardened job queue for background jobs whose one wrong execution is expensive."""
