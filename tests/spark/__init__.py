"""Tests of Spark. A package, unlike the other folders, so that the session and the brokers end with its last test."""
