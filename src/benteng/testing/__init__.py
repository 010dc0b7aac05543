"""What tests of benteng, and of applications that use it, are made of.

Nothing here is imported by the product. `conformance` and `races` need pytest; everything else only the core.
"""
