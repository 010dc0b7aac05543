"""What people use to run benteng: the command line, its explanations and its examination of an installation."""
