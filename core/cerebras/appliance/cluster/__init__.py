"""Clusters (`cerebras.appliance.cluster`): none here."""
