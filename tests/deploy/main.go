// Reads what is in deploy/ the way its readers do, and refuses what they would refuse or silently
// ignore: Kubernetes manifests with the API's own types, strictly; compose files with Compose's own
// loader and schema. Prints what it read as JSON, for tests to look at.
//
//	check kubernetes FILE
//	check compose FILE
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/compose-spec/compose-go/loader"
	"github.com/compose-spec/compose-go/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fail(errors.New("usage: check kubernetes|compose FILE"))
	}
	readers := map[string]func(string) (any, error){"kubernetes": kubernetes, "compose": compose}
	read, known := readers[os.Args[1]]
	if !known {
		fail(fmt.Errorf("no reader of %s", os.Args[1]))
	}
	found, err := read(os.Args[2])
	if err != nil {
		fail(fmt.Errorf("%s: %w", os.Args[2], err))
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Every document of a file, as one of the API's types.
func kubernetes(path string) (any, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme, rbacv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	options := serializer.SerializerOptions{Yaml: true, Strict: true}
	decoder := serializer.NewSerializerWithOptions(
		serializer.DefaultMetaFactory, scheme, scheme, options)

	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	documents := yaml.NewYAMLReader(bufio.NewReader(file))
	objects := []runtime.Object{}
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("document %d (%v): %w", len(objects)+1, kind, err)
		}
		objects = append(objects, object)
	}
}

func compose(path string) (any, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	details := types.ConfigDetails{
		WorkingDir:  filepath.Dir(path),
		ConfigFiles: []types.ConfigFile{{Filename: path, Content: content}},
		Environment: map[string]string{},
	}
	return loader.Load(details, func(options *loader.Options) {
		options.SetProjectName("strata", true)
	})
}
