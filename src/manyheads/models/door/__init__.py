"""The one door into real models: an attention function and a mask function, registered with transformers once."""
