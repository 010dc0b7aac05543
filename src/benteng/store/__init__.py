"""The ledger: one contract, cut at operations; the stores that keep it; and the one place that opens them."""
