"""Transcription: texts that a decoder writes for recordings."""
