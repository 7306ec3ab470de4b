package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/cmd/kvindexd/internal/config"
)

func TestDefaults(t *testing.T) {
	c, err := config.Load(nil, nil, os.ReadFile)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := c.Print(&b); err != nil {
		t.Fatal(err)
	}
	t.Log(b.String())
}
