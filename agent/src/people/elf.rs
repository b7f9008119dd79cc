//! What a program needs of its host: architecture, loader, C library.
