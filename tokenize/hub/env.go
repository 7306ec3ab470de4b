package hub

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvindex/kvindex/tokenize/internal/hubcache"
)

func (c *Client) offline() bool {
	return c.Offline || isTrue(cmp.Or(os.Getenv("HF_HUB_OFFLINE"), os.Getenv("TRANSFORMERS_OFFLINE")))
}

// isTrue is _is_true of constants.py.
func isTrue(s string) bool {
	switch strings.ToUpper(s) {
	case "1", "ON", "YES", "TRUE":
		return true
	}
	return false
}

func (c *Client) endpoint() (*url.URL, error) {
	text := strings.TrimRight(cmp.Or(c.Endpoint, os.Getenv("HF_ENDPOINT"), "https://huggingface.co"), "/")
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("Client.Endpoint or HF_ENDPOINT is not an address of http or https, as https://huggingface.co is: %w", fs.ErrInvalid) // it may have a password
	}
	return u, nil
}

// token is get_token of utils/_auth.py, without its OIDC and its notebooks.
func (c *Client) token() (string, error) {
	token := c.Token
	if token == "" && !isTrue(os.Getenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
		token = clean(cmp.Or(os.Getenv("HF_TOKEN"), os.Getenv("HUGGING_FACE_HUB_TOKEN")))
		if token == "" {
			var err error
			if token, err = tokenFile(); err != nil {
				return "", fmt.Errorf("the token file: %w", err)
			}
		}
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("the token has a character that no token has: %w", fs.ErrInvalid)
	}
	return token, nil
}

func tokenFile() (string, error) {
	path, err := hubcache.Expand(os.Getenv("HF_TOKEN_PATH"))
	if err == nil && path == "" {
		path, err = hubcache.Home()
		path = filepath.Join(path, "token")
	}
	if err != nil {
		return "", nil // no home has no token
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4<<10))
	return clean(string(b)), err
}

func clean(token string) string {
	return strings.TrimSpace(strings.NewReplacer("\r", "", "\n", "").Replace(token))
}
