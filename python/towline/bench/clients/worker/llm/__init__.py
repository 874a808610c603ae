"""Chats with an OpenAI-compatible endpoint, streamed, as the users of each client would write them."""
