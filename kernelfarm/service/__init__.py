"""What every service is built on: settings, logs, server, interceptor, channels to other services.

Import from the modules; this file stays empty so that a client that only opens a channel does not
pay for the server's imports.
"""
