"""The only place that imports SGLang."""
