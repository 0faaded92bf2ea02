"""Other people's software, with this library's layers inside: one folder for each."""
