"""The dashboard at `/om/`: a small page over the admin API, without a build step
(docs/guides/dashboard.md)."""
