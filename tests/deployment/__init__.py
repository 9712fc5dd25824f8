"""The examples of deployment: compose file, manifests and nginx's configuration."""
