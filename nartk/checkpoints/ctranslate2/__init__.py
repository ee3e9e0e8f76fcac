"""Folders of CTranslate2, as its converters write them and faster-whisper's models come."""
