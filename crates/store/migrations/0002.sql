-- What came of a webhook's last try, in a word.
ALTER TABLE kvit_hook ADD COLUMN last TEXT;
