"""Keys, codec, envelope, session: how a request travels. The only package that imports zenoh."""
