"""The LMDB tables: wheel slots, queues, forwarding pointers and keys, and the writer that fills them."""
