package db

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"sigmaos.dev/trees/db/query"
)

// definition is what a database is. It lies in its directory; a directory without one is SQLite's.
type definition struct {
	URL string `json:"url"` // with a password: it is told to nobody
}

const (
	definitionFile = "definition"
	dataFile       = "data.sqlite"
)

// engine says which one.
func (d definition) engine() string {
	if d.URL == "" {
		return query.EngineSQLite
	}
	return query.EngineOf(d.URL)
}

// write makes a database's directory, all at once.
func (d definition) write(realmDir, name string) error {
	tmp := filepath.Join(realmDir, ".new-"+name)
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	if d.URL != "" {
		text, err := json.Marshal(d)
		if err != nil {
			return err
		}
		if err := writeSynced(filepath.Join(tmp, definitionFile), text); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, filepath.Join(realmDir, name)); err != nil {
		return err
	}
	dir, err := os.Open(realmDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func writeSynced(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(text); err != nil {
		return err
	}
	return f.Sync()
}

// readDefinition reads what a database is.
func readDefinition(dir string) (d definition, err error) {
	text, err := os.ReadFile(filepath.Join(dir, definitionFile))
	if os.IsNotExist(err) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	return d, err
}

// redacted is the text of an error for the log: without the password, should a driver have put it
// there.
func (d definition) redacted(err error) string {
	text := err.Error()
	if u, perr := url.Parse(d.URL); perr == nil && u.User != nil {
		if password, has := u.User.Password(); has && password != "" {
			text = strings.ReplaceAll(text, password, "...")
		}
	}
	return text
}
