"""What tests of several rooms share: servers, clients, counters."""
