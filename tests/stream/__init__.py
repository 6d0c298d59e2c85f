"""The stream filter over sockets, against a scripted server."""
