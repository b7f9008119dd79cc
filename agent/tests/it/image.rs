//! Root directories to run the agent in, as pods of a network of their own.
