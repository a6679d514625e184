"""The base of every service: settings, logs, server, calls, channels to other services.

Import from the modules. This file imports nothing, so that a client that opens a channel does not
import the server.
"""
