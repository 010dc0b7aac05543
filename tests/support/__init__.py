"""What tests of more than one part share: real servers, and a network that can fail."""
