package cli

import (
	_ "embed" // for the catalogue
	"encoding/json"
	"fmt"
	"strings"
)

// catalogue has the Chinese of every text: English to Chinese.
//
//go:embed zh.json
var catalogue []byte

// Words says texts in a language. The zero Words says them in English, as they stand in the source.
type Words struct {
	Lang string // en or zh
	zh   map[string]string
}

// NewWords returns the words of a language; catalogue is a JSON object from English to Chinese texts.
func NewWords(lang string, catalogue []byte) Words {
	w := Words{Lang: lang}
	if lang == "zh" && json.Unmarshal(catalogue, &w.zh) != nil {
		w.Lang = "en" // a broken catalogue fails the tests; here English is better than nothing
	}
	return w
}

// Say is fmt.Sprintf in the reader's language.
func (w Words) Say(text string, args ...any) string {
	if t, ok := w.zh[text]; ok {
		text = t
	}
	if len(args) == 0 {
		return text
	}
	return fmt.Sprintf(text, args...)
}

// Language chooses by --lang, then as POSIX says by LC_ALL, LC_MESSAGES and LANG.
func Language(args []string, getenv func(string) string) string {
	for i, arg := range args {
		if v, ok := strings.CutPrefix(arg, "--lang="); ok {
			return languageOf(v)
		}
		if arg == "--lang" && i+1 < len(args) {
			return languageOf(args[i+1])
		}
		if arg == "--" {
			break
		}
	}
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if v := getenv(name); v != "" {
			return languageOf(v)
		}
	}
	return "en"
}

func languageOf(tag string) string {
	if strings.HasPrefix(strings.ToLower(tag), "zh") {
		return "zh"
	}
	return "en"
}
