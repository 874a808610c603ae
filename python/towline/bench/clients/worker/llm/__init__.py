"""Chats with an OpenAI-compatible endpoint, streamed, as users of each client would write them."""
