"""Documents in, cited answers out; meets the engine over HTTP only."""
