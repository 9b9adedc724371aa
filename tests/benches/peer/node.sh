#!/usr/bin/env bash
# node on the driver that HOB_DRIVER_RUN starts programs on. node-llama-cpp starts a node of its own
# to try its library, and the node it sees itself run by is that driver's dynamic loader.
exec "$HOB_DRIVER_RUN" node "$@"
