"""Write the actor's prompt: the memory's texts among the client's messages."""
