"""`towline.state`: values, messages, locks and limits that processes share, and their files."""
