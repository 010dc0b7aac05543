"""`benteng bench`: what this installation does in a second, on a ledger of its own beside the user's.

Nothing is switched off to be faster. Every figure comes with what it cost in records, counted in the ledger, and with
the settings that the server really has.
"""
