"""HTTP/1 as both servers of the hub speak it, the one for messages and the one of the API."""
