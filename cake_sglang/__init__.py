"""CAKE on SGLang: the method and its seat in the engine."""
