"""Sentences, tables and pages: only this package writes for people, and nothing reads its sentences back."""
