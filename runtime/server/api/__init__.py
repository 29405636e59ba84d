"""OpenAI's API as data: requests, complaints, objects. Free of HTTP and of asyncio."""
