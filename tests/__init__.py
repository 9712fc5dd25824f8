"""The tests of the proxy: each folder mirrors a room of `om_proxy`, or serves one purpose of its
own."""
