"""Find out from a request's headers which tenant, resource and thread it belongs to."""
