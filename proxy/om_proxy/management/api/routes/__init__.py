"""The routes of the admin API, one module for each subject: what is sent, done and answered."""
