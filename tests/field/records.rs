//! F03, F05, F07: records byte for byte, topics and partitions, the partitioner.
